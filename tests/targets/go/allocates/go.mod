module strata.test/allocates

go 1.19
