"""What a trial is: drafters, tree policies, acceptance rules and sampling, as frozen data and pure
functions.
"""
