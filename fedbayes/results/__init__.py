"""What a fit returns, and what is made of it."""
