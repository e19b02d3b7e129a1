"""Maps of where heads look, for a page of HTML."""
