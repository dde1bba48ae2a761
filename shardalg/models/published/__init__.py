"""The models of GSPMD (arXiv:2105.04663), sections 5.2 to 5.6 and figure 2, with their layouts."""
