"""The routes by topic, each a table with its handlers; `table` has all of them."""
