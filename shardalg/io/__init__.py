"""Tables, answers and files: what is handed out, written and read, whatever it is about."""
