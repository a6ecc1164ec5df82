"""HTML pages and charts, without scripts from elsewhere."""
