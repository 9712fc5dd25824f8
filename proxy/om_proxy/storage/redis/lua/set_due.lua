put_due(take(), take(), take(), take())
