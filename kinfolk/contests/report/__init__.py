"""One HTML file that holds a whole comparison: readable offline, on a phone, in light and dark.

The charts are a small script of our own and not a plotting library: the page stays under 100 KB where an embedded
library is 4 MB, it needs no extra to be installed, and it says exactly what this comparison needs.
"""

from kinfolk.contests.report.page import render as render
