"""From a function to its program in stages, each the input of the next; plan files and guards."""
