"""The pool controller: workers for seats, one lead before they are needed and for as long as they are."""
