"""The suites over all frameworks, the table they run over, and the toy framework."""
