"""What `shardalg explore` shows: strategies of a Transformer planned, drawn, run and proved."""
