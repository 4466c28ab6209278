"""The report as one HTML file: sections, charts as Vega-Lite specs, and the page around them."""
