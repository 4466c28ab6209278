"use strict";
(async () => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  // Expressions are interpreted (ast): the page forbids making code of texts. Drawn as SVG, charts print as sharp as text.
  const options = { mode: "vega-lite", renderer: "svg", ast: true, actions: false, defaultStyle: false, tooltip: false };
  for (const place of document.querySelectorAll("[data-chart]")) {
    try {
      await vegaEmbed(place, specs[place.dataset.chart], options);
    } catch (error) {
      place.removeAttribute("role");
      place.textContent = "This chart cannot be drawn here; its table has the numbers.";
      console.error(error);
    }
  }
  document.documentElement.dataset.charts = "drawn";
})();
