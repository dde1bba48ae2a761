"""The page of a plan: one HTML file with its time, memory and bytes by line, module and mesh axis.

`page_data` collects the numbers from the plan's own answers, `page_memory` those of its memory over
time, `page_modules` folds its modules, `page_figures` draws the three figures, and `plan_html`
joins them with the style (`page.css`) and the script (`page.js`).
"""
