"""What makes the documentation: its generated pages, and the site's pages that lie outside of docs/."""
