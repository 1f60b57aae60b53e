"""Commands of operators: workers, licences, alerts, events, audit, sinks, doctor."""
