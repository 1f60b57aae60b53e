"""CML controllers behind the `LabHost` protocol, over their REST API."""
