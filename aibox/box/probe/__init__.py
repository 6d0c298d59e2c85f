"""What a box is and holds, as JSON: a question's file and those that it imports are sent along.

Standard library only. Nothing is changed; what can't be found out is null, never a guess.
"""
