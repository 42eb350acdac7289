"""Cases from full-size models: traced without weights, stored as shapes."""
