"""What a user gets back: the fit, its ArviZ form, verdicts, tables and figures."""
