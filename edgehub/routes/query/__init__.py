"""The route language: text into tokens, trees and checked expressions, those into code."""
