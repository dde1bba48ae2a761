"""Graph passes before planning: different spellings of one computation become the same nodes."""
