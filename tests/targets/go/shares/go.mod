module strata.test/shares

go 1.21
