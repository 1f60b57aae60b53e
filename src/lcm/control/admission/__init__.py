"""What must hold before a document is stored."""
