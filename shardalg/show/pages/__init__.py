"""Interactive pages: one HTML file each, which loads nothing and is dark where the system is.

`document` joins the common style and script (`base.css`, `base.js`) with those of a page.
`charts.js` draws lines, points and maps. `formula_program` writes formulas as data, which
`formulas.js` evaluates.
"""
