"""What is watched: the curves of the dashboard and the alerts, as data, and the files made of them.

`python -m aibox.monitoring` writes templates/monitoring/dashboard.json and rules.yml, which are
committed: a deploy only copies them.
"""
