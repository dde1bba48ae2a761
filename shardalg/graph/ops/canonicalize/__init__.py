"""Graph passes before planning: one spelling for what can be written in several ways."""
