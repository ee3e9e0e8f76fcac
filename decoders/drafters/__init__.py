"""Drafters that several strategies share: what proposes tokens, never decides."""
