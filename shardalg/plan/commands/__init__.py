"""The commands: per module the words of its help, its options and what it does."""
