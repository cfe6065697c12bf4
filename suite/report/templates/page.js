startTables();
startDownloads();
startTheme(redraw);
startCharts();
