"""The pool controller: starts workers for claimed seats in time and releases them when no claim needs them."""
