"""The lint of words (`make words`): refused phrases and names, pronouns of persons, and constants with two values.

`docs/glossary.md` is the one place of the refused words. The checkout has none of them.
"""
