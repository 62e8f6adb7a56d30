"""Pages a person opens with a double click: one offline HTML file each. Never imports torch."""
