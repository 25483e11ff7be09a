"""Matching: rules against one scope. Produces complete matches and, for every anchor that failed, the reason."""
