module strata.test/threads

go 1.21
