"""What must never happen, each as a small named function; `table` says when each runs."""
