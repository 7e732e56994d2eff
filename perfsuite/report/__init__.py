"""Sentences, tables, pages and pictures: only this package writes for people, and nothing reads its sentences back."""
