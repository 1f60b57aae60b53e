"""The only writer: every change of state goes through here."""
