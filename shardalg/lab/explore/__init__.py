"""The report of `shardalg explore`: strategies of a Transformer planned, drawn, run and proved."""
