"""Pages of plans: a plan by line, module and mesh axis; and its formulas at other sizes.

`page_data` collects the numbers from the plan's own answers, `page_memory` those of its memory over
time, `page_modules` folds its modules, `page_figures` draws the three figures, and `plan_html`
joins them with the style (`page.css`) and the script (`page.js`). `report_page` and `report.js` are
the page that computes formulas at other sizes.
"""
