"""Settings: every variable, where its value comes from, and its documentation."""
