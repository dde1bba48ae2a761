"""Numbers with names: exact formulas, records of what was asked of them, and facts about them."""
