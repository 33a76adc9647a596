//! Egress: endpoints, splicing of secrets, request ledger.
