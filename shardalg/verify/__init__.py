"""Translation validation: every instruction of a program against the graph it came from."""
