"""Steps that were measured, as rows of tables, and the constants that are fitted to them."""
