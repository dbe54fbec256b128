"""Reports as HTML pages, and the plots in them."""
