"""Tables and figures of the pages in docs/findings, from folders of studies. Examples::

    PYTHONPATH=tools python -m findings table runs/reach-full docs/data/reach-full.csv
    PYTHONPATH=tools python -m findings figure docs/data/dat-paper.csv docs/img/finding-modes.png \\
        --arms parallel2-dat parallel2-freeze --times 3 10
    PYTHONPATH=tools python -m findings page-figure docs/findings/steps.md \\
        docs/img/finding-steps.png --columns "1 x (25)" "3 x (75)" "10 x (250)"
"""
