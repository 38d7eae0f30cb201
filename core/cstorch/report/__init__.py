"""What a program became of: its operations, memory and guards, as text, JSON, a page and a readable graph."""
