"""Scripts that make what stands in docs/: pages, the site, pictures of what programs printed."""
