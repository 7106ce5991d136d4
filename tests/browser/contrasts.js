// Contrast ratios (WCAG 2.2) of all visible texts, and of the marks of charts, against what is behind them.
() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parsed = new Map(); // reading pixels is slow
  const parse = (colour) => {
    if (!parsed.has(colour)) parsed.set(colour, painted(colour));
    return parsed.get(colour);
  };
  const painted = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const linear = (channel) =>
    channel / 255 <= 0.04045 ? channel / 255 / 12.92 : ((channel / 255 + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ratio = (a, b) => {
    const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
    return (high + 0.05) / (low + 0.05);
  };
  const chain = (node) => (node ? [node, ...chain(node.parentElement)] : []);
  const background = (node) =>
    chain(node)
      .reverse()
      .reduce((below, one) => over(parse(getComputedStyle(one).backgroundColor), below), [255, 255, 255, 1]);
  const fade = (node) => chain(node).reduce((product, one) => product * Number(getComputedStyle(one).opacity), 1);
  const seen = (node) =>
    node.checkVisibility({ checkVisibilityCSS: true, checkOpacity: true }) && node.getBoundingClientRect().width > 1;
  const entry = (node, colour, extra = 1) => {
    const behind = background(node),
      own = [...parse(colour)];
    own[3] *= fade(node) * extra;
    return {
      what: `${node.tagName} .${node.getAttribute("class") ?? ""} ${(node.textContent ?? "").trim().slice(0, 40)}`,
      ratio: ratio(over(own, behind), behind),
    };
  };
  const hasText = (node) =>
    [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.textContent.trim());
  const texts = [...document.body.querySelectorAll("*")]
    .filter((node) => hasText(node) && !["SCRIPT", "NOSCRIPT", "OPTION"].includes(node.tagName) && seen(node))
    .map((node) =>
      entry(node, node instanceof SVGElement ? getComputedStyle(node).fill : getComputedStyle(node).color),
    );
  for (const input of document.querySelectorAll("input[placeholder]"))
    texts.push(entry(input, getComputedStyle(input, "::placeholder").color));
  const marks = [
    ...document.querySelectorAll(
      ".point .mark, .plot .error path, .plot .front-line path, .plot .course path, .plot .dot circle," +
        " .plot .importance rect, .plot .volume path, .ring, .bar-line",
    ),
  ]
    .filter(seen)
    .map((node) => {
      const style = getComputedStyle(node),
        colours = [style.fill, style.stroke].filter((colour) => colour !== "none");
      const found = colours.map((colour) =>
        entry(node, colour, colour === style.stroke ? Number(style.strokeOpacity) : Number(style.fillOpacity)),
      );
      return found.reduce((best, one) => (one.ratio > best.ratio ? one : best));
    });
  return { texts, marks };
};
